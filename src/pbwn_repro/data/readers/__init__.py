"""Readers of the published file formats: each turns files into uint8 pictures and int64 labels."""
