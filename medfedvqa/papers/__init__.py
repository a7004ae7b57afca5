"""The other founding papers' methods and networks, imported only when a job names one."""
