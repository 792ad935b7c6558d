"""Makes a plain bfloat16 checkpoint of a quantised one.

`schemes` reads how the weights are quantised, each of four modules knows one way to store them, and
`conversion` writes the new folder.
"""
