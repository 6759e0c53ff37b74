def read_method(text: str):
    raise ValueError(f"compress={text}: not built yet")
