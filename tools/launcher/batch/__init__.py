"""`run.py batch`: one workflow over a list, in pieces, on this machine or on a Ray cluster."""
