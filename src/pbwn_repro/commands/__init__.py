"""The sub-commands of `pbwn`, one module each; heavy imports wait inside of the functions."""
