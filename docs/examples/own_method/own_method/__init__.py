"""A method and a reader of your own for medfedvqa."""
