"""The projection inside other libraries' training loops; each module is imported only on request."""
