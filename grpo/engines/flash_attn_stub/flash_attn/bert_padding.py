def pad_input(*args: object, **kwargs: object) -> object:
    raise NotImplementedError("flash-attn is not installed; engine.flash_attention must be false")


unpad_input = pad_input
