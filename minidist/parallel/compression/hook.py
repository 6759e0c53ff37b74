def compressing(text: str, error_feedback: bool, seed: int):
    raise NotImplementedError
