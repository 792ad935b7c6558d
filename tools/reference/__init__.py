"""The generated pages of docs/: each module renders one of them from the code that it describes."""
