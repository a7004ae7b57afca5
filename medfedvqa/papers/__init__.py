"""The other founding papers' methods and networks, imported when a job names them, and by no other room."""
