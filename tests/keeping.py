"""What a function returns while something else calls it: so a demonstration's own runs are looked at, not run again."""


def kept(patch, module, name: str) -> list[tuple]:
    """The (first argument, result) of each call of a function of a module, from now until ``patch`` is undone."""
    calls, function = [], getattr(module, name)

    def keeping(*arguments, **options):
        result = function(*arguments, **options)
        calls.append((arguments[0], result))
        return result

    patch.setattr(module, name, keeping)
    return calls
