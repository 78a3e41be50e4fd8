"""The projection inside other libraries' training loops; each module is imported only by who asks for it."""
