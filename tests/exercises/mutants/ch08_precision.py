"""Mutants of chapter 8."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 8.1 worksheet
    Mutant("8.1", "one moment instead of two", '"mixed": (2, 2, 4 + 8)', '"mixed": (2, 2, 4 + 4)'),
    Mutant("8.1", "no master weights", '"megatron": (2, 4, 4 + 8)', '"megatron": (2, 4, 8)'),
    Mutant("8.1", "gradients in float32", '"minidist": (2, 8, 4 + 8)', '"minidist": (2, 4, 4 + 8)'),
    Mutant("8.1", "stage 2 shards the weights", "if stage >= 3:", "if stage >= 2:"),
    Mutant(
        "8.1", "the master weights are not sharded", "optimizer /= ranks", "optimizer = 4 + (optimizer - 4) / ranks"
    ),
    Mutant(
        "8.1", "takes the all-ones mantissa for NaN in every format", "(2 - 2.0**-mantissa)", "(2 - 2 * 2.0**-mantissa)"
    ),
    Mutant("8.1", "takes the last code for a number", "(2 - 2 * 2.0**-mantissa)", "(2 - 2.0**-mantissa)"),
    Mutant("8.1", "every format has infinity", "2.0 ** (bias + 1)", "2.0**bias"),
    Mutant("8.1", "the smallest normal number", "return 2.0 ** (1 - bias - mantissa)", "return 2.0 ** (1 - bias)"),
    Mutant("8.1", "treats the exponent 0 like the others", "(1 - bias - mantissa)", "(-bias - mantissa)"),
    Mutant(
        "8.1",
        "the spacing keeps shrinking below the normal numbers",
        "(max(power, 1 - bias) - mantissa)",
        "(power - mantissa)",
    ),
    Mutant("8.1", "the spacing is one power too large", "frexp(value)[1] - 1", "frexp(value)[1]"),
    Mutant(
        "8.1",
        "knows only the formats in the table",
        "(2 - 2 * 2.0**-mantissa) * 2.0 ** (bias + 1)",
        "448.0",
        kind="edge",
    ),
    Mutant(
        "8.1",
        "knows only the biases in the table",
        """
        bias = 2 ** (exponent - 1) - 1
        return 2.0 ** (1 - bias - mantissa)
        """,
        """
        bias = {4: 7, 5: 15, 8: 127, 11: 1023}[exponent]
        return 2.0 ** (1 - bias - mantissa)
        """,
        kind="edge",
    ),
    Mutant(
        "8.1",
        "rounds the logarithm of a value just below a power of two",
        "frexp(value)[1] - 1",
        "int(np.floor(np.log2(value)))",
        kind="edge",
    ),
    Mutant(
        "8.1",
        "computes the power of a value in float32",
        "frexp(value)[1] - 1",
        "frexp(np.float32(value))[1] - 1",
        kind="edge",
    ),
    Mutant(
        "8.1",
        "a value below the smallest number has no spacing",
        "return 2.0 ** (max(power, 1 - bias) - mantissa)",
        "return 2.0 ** (max(power, 1 - bias) - mantissa) if power >= 1 - bias - mantissa else 0.0",
        kind="edge",
    ),
    Mutant(
        "8.1",
        "divides the rows of a table that it keeps",
        """
        }[recipe]
        if stage >= 1:
            optimizer /= ranks
        if stage >= 2:
            gradients /= ranks
        if stage >= 3:
            weights /= ranks
        return weights + gradients + optimizer
        """,
        """
        }[recipe]
        row = globals().setdefault("_rows", {}).setdefault(recipe, [weights, gradients, optimizer])
        for place in range(3):
            if stage >= 3 - place:
                row[place] /= ranks
        return sum(row)
        """,
        kind="second call",
    ),
    Mutant("8.1", "rounds shares down", "optimizer /= ranks", "optimizer //= ranks", kind="edge"),
    Mutant(
        "8.1",
        "takes a power of two for the end of the numbers below it",
        "frexp(value)[1] - 1",
        "frexp(np.nextafter(value, 0))[1] - 1",
        kind="edge",
    ),
    # 8.2 bfloat16_bits
    Mutant("8.2", "truncation", WHOLE, "return (values.view(np.uint32) >> 16).astype(np.uint16)"),
    Mutant(
        "8.2",
        "ties go up",
        "codes = (bits + np.uint32(0x7FFF) + last) >> 16",
        "codes = (bits.astype(np.uint64) + 0x8000) >> 16",
    ),
    Mutant("8.2", "ties go down", "(bits + np.uint32(0x7FFF) + last)", "(bits + np.uint32(0x7FFF))"),
    Mutant("8.2", "ties go to odd", "(bits >> 16) & np.uint32(1)", "(~bits >> 16) & np.uint32(1)"),
    Mutant(
        "8.2",
        "NaN is rounded like a number",
        "return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)",
        "return codes.astype(np.uint16)",
    ),
    Mutant(
        "8.2",
        "overflow becomes the largest number",
        """
        return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
        """,
        """
        codes = np.where(np.isfinite(values) & (codes & 0x7FFF == 0x7F80), codes - 1, codes)
        return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
        """,
    ),
    Mutant(
        "8.2",
        "infinity becomes NaN",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        "np.where(np.isfinite(values), codes, 0x7FC0)",
    ),
    Mutant(
        "8.2",
        "subnormals become 0",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        "np.where(np.isnan(values), 0x7FC0, np.where(np.abs(values) < 2.0**-126, codes & 0x8000, codes))",
    ),
    Mutant(
        "8.2", "-0.0 becomes 0.0", "bits = values.view(np.uint32)", "bits = (values + np.float32(0)).view(np.uint32)"
    ),
    Mutant("8.2", "returns 32-bit codes", ".astype(np.uint16)", ""),
    Mutant(
        "8.2",
        "modifies the values in place",
        "bits = values.view(np.uint32)",
        "bits = values.view(np.uint32); bits &= np.uint32(0xFFFFFFFE); bits |= np.uint32(0)",
    ),
    Mutant(
        "8.2",
        "calls the library's own",
        WHOLE,
        """
        from minidist.nn.precision.formats import BFLOAT16

        return BFLOAT16.encode(values)
        """,
    ),
    Mutant(
        "8.2",
        "one NaN makes all values NaN",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        "np.where(np.isnan(values).any(), 0x7FC0, codes)",
        kind="edge",
    ),
    Mutant(
        "8.2",
        "keeps one array of codes for each length",
        """
        return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
        """,
        """
        kept = globals().setdefault("_kept", {}).setdefault(len(values), np.empty(len(values), np.uint16))
        kept[...] = np.where(np.isnan(values), 0x7FC0, codes)
        return kept
        """,
        kind="second call",
    ),
    Mutant(
        "8.2",
        "keeps a mask of NaN for each length",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        'np.where(globals().setdefault("_masks", {}).setdefault(len(values), np.isnan(values)), 0x7FC0, codes)',
        kind="second call",
    ),
    Mutant(
        "8.2",
        "replaces NaN in the values that it was lent",
        "bits = values.view(np.uint32)",
        "nan = np.isnan(values); values[nan] = np.float32(np.nan); bits = values.view(np.uint32)",
        kind="lent",
    ),
    Mutant(
        "8.2",
        "returns 32-bit codes if there is a NaN",
        "return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)",
        "nan = np.isnan(values); return np.where(nan, 0x7FC0, codes) if nan.any() else codes.astype(np.uint16)",
        kind="dtype",
    ),
    Mutant(
        "8.2",
        "remembers the codes of an array, whatever it holds by now",
        """
        return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
        """,
        """
        known, codes = globals().setdefault("_known", []), np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
        known.append((values, codes))
        return next(codes for array, codes in known if array is values).copy()
        """,
        kind="second call",
    ),
    Mutant(
        "8.2",
        "looks for NaN in the upper half only",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        "np.where((bits >> 16) & 0x7FFF > 0x7F80, 0x7FC0, codes)",
        kind="edge",
    ),
    Mutant(
        "8.2",
        "the first value decides about NaN",
        "np.where(np.isnan(values), 0x7FC0, codes)",
        "np.where(np.isnan(values[:1]), 0x7FC0, codes)",
        kind="edge",
    ),
    # 8.3 scale_to
    Mutant(
        "8.3",
        "not a power of two",
        "return np.ldexp(np.float32(1), np.where(usable, exponent - 1, 0)).astype(np.float32)",
        "return np.where(usable, format.largest / np.where(usable, greatest, 1), 1).astype(np.float32)",
    ),
    Mutant("8.3", "twice too large", "np.where(usable, exponent - 1, 0)", "np.where(usable, exponent, 0)"),
    Mutant(
        "8.3", "half of the scale that fits", "np.where(usable, exponent - 1, 0)", "np.where(usable, exponent - 2, 0)"
    ),
    Mutant(
        "8.3",
        "the nearest power of two",
        "_, exponent = np.frexp(format.largest",
        "_, exponent = np.frexp(1.4 * format.largest",
    ),
    Mutant("8.3", "the largest value instead of the largest magnitude", "np.abs(values).max(", "values.max("),
    Mutant("8.3", "one scale for all blocks", "axis=axes, keepdims=True, initial=0)", "keepdims=True, initial=0)"),
    Mutant("8.3", "drops the axes", "keepdims=True, ", ""),
    Mutant("8.3", "fails without values", "initial=0", ""),
    Mutant("8.3", "zeros get a scale", "np.isfinite(greatest) & (greatest > 0)", "np.isfinite(greatest)"),
    Mutant(
        "8.3",
        "all scales are 1 if one is",
        "np.ldexp(np.float32(1), np.where(usable, exponent - 1, 0))",
        "np.ldexp(np.float32(1), np.where(usable.all(), exponent - 1, 0))",
    ),
    Mutant(
        "8.3",
        "an infinite value makes its scale small",
        "usable = np.isfinite(greatest) & (greatest > 0)",
        "greatest = np.minimum(greatest, 2.0**127); usable = greatest > 0",
    ),
    Mutant("8.3", "a scale may be infinite", "usable &= exponent - 1 <= 127", "pass"),
    Mutant(
        "8.3",
        "calls the library's own",
        WHOLE,
        """
        from minidist.nn.precision import formats

        return formats.scale_to(format, values, axes)
        """,
    ),
    Mutant(
        "8.3",
        "no axes means all of them",
        "axis=axes, keepdims=True, initial=0)",
        "axis=axes or None, keepdims=True, initial=0)",
        kind="edge",
    ),
    Mutant(
        "8.3",
        "fails for a number without axes",
        "_, exponent = np.frexp(",
        "greatest[~usable] = 1; _, exponent = np.frexp(",
        kind="edge",
    ),
    Mutant(
        "8.3",
        "makes the values positive in place",
        "np.abs(values).max(",
        "np.abs(values, out=values).max(",
        kind="lent",
    ),
    Mutant(
        "8.3",
        "replaces what is not finite in the values that it was lent",
        """
        greatest = np.abs(values).max(axis=axes, keepdims=True, initial=0).astype(np.float64)
        """,
        """
        greatest = np.abs(values).max(axis=axes, keepdims=True, initial=0).astype(np.float64)
        np.nan_to_num(values, copy=False)
        """,
        kind="lent",
    ),
    Mutant(
        "8.3",
        "keeps one array of scales for each shape",
        """
        return np.ldexp(np.float32(1), np.where(usable, exponent - 1, 0)).astype(np.float32)
        """,
        """
        kept = globals().setdefault("_kept", {})
        kept = kept.setdefault(greatest.shape, np.empty(greatest.shape, np.float32))
        kept[...] = np.ldexp(1.0, np.where(usable, exponent - 1, 0))
        return kept
        """,
        kind="second call",
    ),
    Mutant(
        "8.3",
        "keeps the largest number of the first format",
        "np.frexp(format.largest /",
        'np.frexp(globals().setdefault("_largest", format.largest) /',
        kind="second call",
    ),
    Mutant(
        "8.3",
        "returns float64",
        "(np.float32(1), np.where(usable, exponent - 1, 0)).astype(np.float32)",
        "(1.0, np.where(usable, exponent - 1, 0))",
        kind="dtype",
    ),
    Mutant("8.3", "divides in float32, which overflows", "initial=0).astype(np.float64)", "initial=0)", kind="dtype"),
    Mutant(
        "8.3",
        "doubles the largest value, which overflows",
        "_, exponent = np.frexp(",
        "usable &= np.isfinite(np.float32(2) * greatest.astype(np.float32)); _, exponent = np.frexp(",
        kind="edge",
    ),
    Mutant(
        "8.3",
        "reads the values as one block of memory",
        "np.abs(values).max(",
        "np.abs(np.ndarray(values.shape, values.dtype, values if values.flags.c_contiguous else values.base)).max(",
        kind="edge",
    ),
    Mutant(
        "8.3",
        "remembers the greatest value of an array, whatever it holds by now",
        """
        usable = np.isfinite(greatest) & (greatest > 0)
        """,
        """
        known = globals().setdefault("_known", [])
        known.append((values, greatest))
        greatest = next(greatest for array, greatest in known if array is values)
        usable = np.isfinite(greatest) & (greatest > 0)
        """,
        kind="second call",
    ),
    Mutant(
        "8.3",
        "half of the scale where the greatest value fits exactly",
        "_, exponent = np.frexp(format.largest / np.where(usable, greatest, 1))",
        "m, e = np.frexp(np.where(usable, greatest, 1)); M, E = np.frexp(format.largest); exponent = E - e + (m < M)",
        kind="edge",
    ),
    # 8.4 MasterWeights
    Mutant(
        "8.4",
        "makes the masters from rounded values",
        """
        self.masters = [master_of(parameter) for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.format = format
        """,
        """
        for parameter in self.parameters:
            values, parameter.format = parameter.data, format
            parameter.data = values
        self.masters = [master_of(parameter) for parameter in self.parameters]
        """,
    ),
    Mutant("8.4", "the constructor does not sync the parameters", "self.sync_params()\n", "\n"),
    Mutant("8.4", "the parameters stay float32", "parameter.format = format", "pass"),
    Mutant(
        "8.4",
        "the masters have the format too",
        """
        self.sync_params()
        """,
        """
        self.sync_params()
        for master in self.masters:
            values, master.format = master.data, format
            master.data = values
        """,
    ),
    Mutant(
        "8.4",
        "the parameters are their own masters",
        "self.masters = [master_of(parameter) for parameter in self.parameters]",
        "self.masters = self.parameters",
    ),
    Mutant(
        "8.4",
        "the masters get a copy of the gradient",
        "master.grad = parameter.grad",
        "master.grad = None if parameter.grad is None else parameter.grad.copy()",
    ),
    Mutant(
        "8.4",
        "keeps an old gradient",
        "master.grad = parameter.grad",
        "master.grad = master.grad if parameter.grad is None else parameter.grad",
    ),
    Mutant(
        "8.4",
        "rounds the gradients too",
        "master.grad = parameter.grad",
        "master.grad = None if parameter.grad is None else parameter.format.round(parameter.grad.astype(np.float32))",
    ),
    Mutant(
        "8.4",
        "rounds the masters too",
        "parameter.data = master.data",
        "parameter.data = master.data; master.data = parameter.data.copy()",
    ),
    Mutant(
        "8.4",
        "the model computes with float32 values",
        "parameter.data = master.data",
        "parameter.format = None; parameter.data = master.data",
    ),
    Mutant(
        "8.4",
        "syncs the parameters only once",
        "parameter.data = master.data",
        "parameter.data = master.data if parameter.stored.dtype == np.float32 else parameter.data",
    ),
    Mutant(
        "8.4",
        "keeps the list that it was lent",
        "self.parameters = list(parameters)",
        "self.parameters = parameters",
        kind="lent",
    ),
    Mutant(
        "8.4",
        "all objects share their masters",
        "self.masters = [master_of(parameter) for parameter in self.parameters]",
        "type(self).masters = [master_of(parameter) for parameter in self.parameters]",
        kind="second call",
    ),
    Mutant(
        "8.4",
        "the format of the first object",
        "parameter.format = format",
        'parameter.format = globals().setdefault("_format", format)',
        kind="second call",
    ),
    Mutant(
        "8.4",
        "syncs only parameters with a gradient",
        """
        parameter.data = master.data
        """,
        """
        if master.grad is not None or parameter.stored.dtype == np.float32:
            parameter.data = master.data
        """,
        kind="edge",
    ),
    Mutant(
        "8.4",
        "gradients in float64",
        "master.grad = parameter.grad",
        "master.grad = None if parameter.grad is None else parameter.grad.astype(np.float64, copy=False)",
        kind="dtype",
    ),
    Mutant(
        "8.4",
        "gradients in float32",
        "master.grad = parameter.grad",
        "master.grad = None if parameter.grad is None else parameter.grad.astype(np.float32, copy=False)",
        kind="dtype",
    ),
    Mutant(
        "8.4",
        "clips the masters to the format's range",
        "parameter.data = master.data",
        "parameter.data = np.clip(master.data, -parameter.format.largest, parameter.format.largest)",
        kind="edge",
    ),
    Mutant(
        "8.4",
        "keeps the arrays that the masters had at first",
        "parameter.data = master.data",
        'parameter.data = vars(self).setdefault("_arrays", {}).setdefault(id(master), master.data)',
        kind="second call",
    ),
    Mutant(
        "8.4",
        "takes gradients only in the first step",
        "master.grad = parameter.grad",
        "master.grad = parameter.grad if master.grad is None else master.grad",
        kind="second call",
    ),
    Mutant(
        "8.4",
        "takes the gradients away from the parameters",
        "master.grad = parameter.grad",
        "master.grad, parameter.grad = parameter.grad, None",
        kind="lent",
    ),
    Mutant(
        "8.4",
        "finds masters again by their names",
        """
        self.masters = [master_of(parameter) for parameter in self.parameters]
        """,
        """
        known = globals().setdefault("_known", {})
        self.masters = [known.setdefault(parameter.name, master_of(parameter)) for parameter in self.parameters]
        """,
        kind="second call",
    ),
    # 8.5 GradScaler
    Mutant("8.5", "decides from this rank alone", "return all_max(float(overflow)) > 0", "return bool(overflow)"),
    Mutant(
        "8.5",
        "calls all_max only on ranks with an overflow",
        "return all_max(float(overflow)) > 0",
        "return bool(overflow) and all_max(float(overflow)) > 0",
    ),
    Mutant(
        "8.5",
        "calls all_max for each gradient",
        "overflow |= not np.isfinite(parameter.grad).all()",
        "overflow |= all_max(float(not np.isfinite(parameter.grad).all())) > 0",
    ),
    Mutant("8.5", "multiplies instead of dividing", "parameter.grad /= self.scale", "parameter.grad *= self.scale"),
    Mutant("8.5", "not in place", "parameter.grad /= self.scale", "parameter.grad = parameter.grad / self.scale"),
    Mutant("8.5", "NaN is no overflow", "not np.isfinite(parameter.grad).all()", "np.isinf(parameter.grad).any()"),
    Mutant(
        "8.5", "-inf is no overflow", "not np.isfinite(parameter.grad).all()", "not (parameter.grad < np.inf).all()"
    ),
    Mutant("8.5", "the last gradient decides", "overflow |= not np.isfinite", "overflow = not np.isfinite"),
    Mutant("8.5", "assumes that every parameter has a gradient", "if parameter.grad is not None:", "if True:"),
    Mutant(
        "8.5",
        "stops at the first overflow",
        """
        overflow |= not np.isfinite(parameter.grad).all()
        """,
        """
        overflow |= not np.isfinite(parameter.grad).all()
        if overflow:
            return True
        """,
    ),
    Mutant(
        "8.5",
        "works while disabled",
        """
        if not self.enabled:
            return False
        """,
        """
        pass
        """,
    ),
    Mutant(
        "8.5",
        "calls all_max and ignores the answer",
        """
        return all_max(float(overflow)) > 0
        """,
        """
        all_max(float(overflow))
        return bool(overflow)
        """,
    ),
    Mutant("8.5", "does not count skipped steps", "self.skipped += overflow", "pass"),
    Mutant(
        "8.5",
        "an overflow does not reset the count of good steps",
        "self.good_steps = 0 if overflow else self.good_steps + 1",
        "self.good_steps += not overflow",
    ),
    Mutant(
        "8.5",
        "grows in every step after the interval",
        """
        elif self.good_steps == self.growth_interval:
            self.scale *= self.growth_factor
            self.good_steps = 0
        """,
        """
        elif self.good_steps >= self.growth_interval:
            self.scale *= self.growth_factor
        """,
    ),
    Mutant(
        "8.5",
        "grows one step late",
        "elif self.good_steps == self.growth_interval:",
        "elif self.good_steps > self.growth_interval:",
    ),
    Mutant("8.5", "never grows", "self.scale *= self.growth_factor", "pass"),
    Mutant(
        "8.5", "divides by the backoff factor", "self.scale *= self.backoff_factor", "self.scale /= self.backoff_factor"
    ),
    Mutant("8.5", "always halves, ignoring the factor", "self.scale *= self.backoff_factor", "self.scale /= 2"),
    Mutant(
        "8.5",
        "a fixed scale backs off",
        "if not self.enabled or self.growth_interval == 0:",
        "if not self.enabled:",
    ),
    Mutant(
        "8.5",
        "an overflow stays an overflow",
        "return all_max(float(overflow)) > 0",
        'self.overflow = all_max(float(overflow)) > 0 or getattr(self, "overflow", False); return self.overflow',
        kind="second call",
    ),
    Mutant(
        "8.5",
        "keeps the parameters of its first step",
        "for parameter in parameters:",
        'for parameter in vars(self).setdefault("parameters", list(parameters)):',
        kind="second call",
    ),
    Mutant(
        "8.5",
        "all scalers share the count of good steps",
        "self.good_steps = 0 if overflow else self.good_steps + 1",
        'type(self).count = self.good_steps = 0 if overflow else getattr(type(self), "count", 0) + 1',
        kind="second call",
    ),
    Mutant(
        "8.5",
        "an overflow of the sum is an overflow",
        "not np.isfinite(parameter.grad).all()",
        "not np.isfinite(parameter.grad.sum())",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "an overflow of the norm is an overflow",
        "not np.isfinite(parameter.grad).all()",
        "not np.isfinite(np.linalg.norm(parameter.grad))",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "fails for a gradient without elements",
        "not np.isfinite(parameter.grad).all()",
        "not np.isfinite(np.abs(parameter.grad).max())",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "divides a copy where the gradient is a view",
        "parameter.grad /= self.scale",
        "flat = parameter.grad.reshape(-1); flat /= self.scale",
        kind="lent",
    ),
    Mutant(
        "8.5",
        "gradients become float32",
        "parameter.grad /= self.scale",
        "parameter.grad = (parameter.grad / self.scale).astype(np.float32)",
        kind="dtype",
    ),
    Mutant(
        "8.5",
        "divides in float32",
        "parameter.grad /= self.scale",
        "parameter.grad[...] = parameter.grad.astype(np.float32) / np.float32(self.scale)",
        kind="dtype",
    ),
    Mutant(
        "8.5",
        "tests in float32 whether a gradient is finite",
        "not np.isfinite(parameter.grad).all()",
        "not np.isfinite(parameter.grad.astype(np.float32)).all()",
        kind="dtype",
    ),
    Mutant(
        "8.5",
        "takes values beyond float16 for an overflow",
        "not np.isfinite(parameter.grad).all()",
        "not (np.abs(parameter.grad) <= 65504).all()",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "looks only at the largest magnitude",
        "not np.isfinite(parameter.grad).all()",
        "np.nanmax(np.abs(parameter.grad), initial=0) == inf",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "an overflow of the mean is an overflow",
        "not np.isfinite(parameter.grad).all()",
        "bool(parameter.grad.size) and not np.isfinite(parameter.grad.mean())",
        kind="edge",
    ),
    Mutant(
        "8.5",
        "the largest number of float32 is an overflow",
        "not np.isfinite(parameter.grad).all()",
        "not (np.abs(parameter.grad) < np.finfo(np.float32).max).all()",
        kind="dtype",
    ),
    Mutant(
        "8.5",
        "returns the decision of the step before",
        """
        return all_max(float(overflow)) > 0
        """,
        """
        before = getattr(self, "decision", False)
        self.decision = all_max(float(overflow)) > 0
        return before
        """,
        kind="second call",
    ),
    # 8.6 debugging
    Mutant(
        "8.6",
        "no clipping",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        pass
        """,
    ),
    Mutant(
        "8.6",
        "never unscaled",
        """
        grad /= np.float32(scale)
        """,
        """
        pass
        """,
    ),
    Mutant(
        "8.6",
        "unscaled by the initial scale",
        """
        grad /= np.float32(scale)
        """,
        """
        grad /= np.float32(init_scale)
        """,
    ),
    Mutant(
        "8.6",
        "always scales to the norm",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        grad *= np.float32(max_norm / (norm + 1e-6) if max_norm < inf else 1.0)
        """,
    ),
    Mutant(
        "8.6",
        "clips every element",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        np.clip(grad, -max_norm, max_norm, out=grad)
        """,
    ),
    Mutant(
        "8.6",
        "clipped to the scaled norm",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        grad *= np.float32(min(1.0, max_norm * scale / (norm + 1e-6)))
        """,
    ),
    Mutant(
        "8.6",
        "clipped for the initial scale",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        grad *= np.float32(min(1.0, max_norm / (norm * scale / init_scale + 1e-6)))
        """,
        kind="edge",
    ),
    Mutant(
        "8.6",
        "keeps the scale of an earlier training",
        """
        grad /= np.float32(scale)
        """,
        """
        grad /= np.float32(globals().setdefault("_scale", scale))
        """,
        kind="second call",
    ),
    Mutant(
        "8.6",
        "keeps the largest norm of an earlier training",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        grad *= np.float32(min(1.0, globals().setdefault("_norm", max_norm) / (norm + 1e-6)))
        """,
        kind="second call",
    ),
    Mutant(
        "8.6",
        "the norm in float16",
        """
        norm = sqrt(np.sum(grad.astype(np.float64) ** 2))
        """,
        """
        norm = sqrt(np.sum(grad.astype(np.float16) ** 2))
        """,
        kind="dtype",
    ),
    Mutant(
        "8.6",
        "a float64 master",
        """
        grad /= np.float32(scale)
        """,
        """
        master = master.astype(np.float64); grad = grad.astype(np.float64) / scale
        """,
        kind="dtype",
    ),
    Mutant(
        "8.6",
        "changes the targets that it was lent",
        """
        grad /= np.float32(scale)
        """,
        """
        grad /= np.float32(scale); targets *= np.float16(0.999)
        """,
        kind="lent",
    ),
    Mutant(
        "8.6",
        "changes the features that it was lent",
        """
        grad /= np.float32(scale)
        """,
        """
        grad /= np.float32(scale); features[...] = 0
        """,
        kind="lent",
    ),
    Mutant(
        "8.6",
        "adds too much to a small norm",
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        """,
        """
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-3)))
        """,
        kind="edge",
    ),
    Mutant(
        "8.6",
        "rounds the gradient to float16 after unscaling it",
        """
        grad /= np.float32(scale)
        """,
        """
        grad = (grad / np.float32(scale)).astype(np.float16).astype(np.float32)
        """,
        kind="dtype",
    ),
    # 8.7 checkpoint
    Mutant(
        "8.7",
        "no recomputation: the graph stays",
        "return Checkpoint.apply(function, others, *(value for value in inputs if isinstance(value, Tensor)))",
        "return function(*inputs)",
    ),
    Mutant(
        "8.7",
        "forward runs with a graph and drops it",
        """
        with no_grad():
            return function(*join([Tensor(array) for array in arrays], others)).data
        """,
        """
        return function(*join([Tensor(array, True) for array in arrays], others)).data
        """,
    ),
    Mutant(
        "8.7",
        "forward builds a graph and keeps it",
        """
        with no_grad():
            return function(*join([Tensor(array) for array in arrays], others)).data
        """,
        """
        ctx.output = function(*join([Tensor(array, True) for array in arrays], others))
        return ctx.output.data
        """,
    ),
    Mutant(
        "8.7",
        "saves inputs unrounded, not in 16 bits",
        "ctx.save_for_backward(*arrays)",
        "ctx.save_for_backward(exact=arrays)",
    ),
    Mutant(
        "8.7",
        "the function keeps the tensors themselves",
        """
        others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
        return Checkpoint.apply(function, others, *(value for value in inputs if isinstance(value, Tensor)))
        """,
        """
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
        return Checkpoint.apply(lambda *some: function(*some, *inputs[len(inputs) :]), others, *tensors)
        """,
    ),
    Mutant(
        "8.7", "recomputes in backward's precision", "with recomputing(), autocast(ctx.policy):", "with recomputing():"
    ),
    Mutant(
        "8.7",
        "recomputes in float32",
        "with recomputing(), autocast(ctx.policy):",
        'with recomputing(), autocast("fp32"):',
    ),
    Mutant(
        "8.7",
        "counts recomputation as forward",
        "with recomputing(), autocast(ctx.policy):",
        "with autocast(ctx.policy):",
    ),
    Mutant("8.7", "sums input gradients in float64", "leaf.grad_dtype = leaf.dtype", "pass"),
    Mutant("8.7", "every input gets a gradient", "[Tensor(array, needs) for", "[Tensor(array, True) for"),
    Mutant(
        "8.7",
        "backward forgets the other arguments",
        "output = ctx.run(*join(leaves, ctx.others))",
        "output = ctx.run(*leaves)",
    ),
    Mutant(
        "8.7",
        "passes tensors first, then the others",
        """
        others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
        """,
        """
        others = [Tensor for value in inputs if isinstance(value, Tensor)]
        others += [value for value in inputs if not isinstance(value, Tensor)]
        """,
    ),
    Mutant(
        "8.7",
        "takes the output's gradient for 1",
        "output.backward(gradient)",
        "output.backward(np.ones_like(gradient))",
    ),
    Mutant(
        "8.7",
        "runs the function twice in backward",
        "output.backward(gradient)",
        "ctx.run(*join(leaves, ctx.others)); output.backward(gradient)",
    ),
    Mutant(
        "8.7",
        "backward runs without a graph",
        "with recomputing(), autocast(ctx.policy):",
        "with recomputing(), autocast(ctx.policy), no_grad():",
    ),
    Mutant(
        "8.7",
        "the inputs' gradients are 0",
        "*(leaf.grad for leaf in leaves)",
        "*(None if leaf.grad is None else np.zeros_like(leaf.grad) for leaf in leaves)",
    ),
    Mutant(
        "8.7",
        "calls the library's own",
        "others = [Tensor if isinstance(value, Tensor) else value for value in inputs]",
        "from minidist.nn.memory.recompute import checkpoint as own; return own(function, *inputs)",
    ),
    Mutant(
        "8.7",
        "a tensor that occurs twice is passed once",
        """
        return Checkpoint.apply(function, others, *(value for value in inputs if isinstance(value, Tensor)))
        """,
        """
        tensors = dict.fromkeys(value for value in inputs if isinstance(value, Tensor))
        return Checkpoint.apply(function, others, *tensors)
        """,
        kind="edge",
    ),
    Mutant(
        "8.7",
        "float64 inputs have gradients summed in float32",
        "leaf.grad_dtype = leaf.dtype",
        "leaf.grad_dtype = np.float32",
        kind="dtype",
    ),
    Mutant(
        "8.7",
        "inputs become float32",
        "leaves = [Tensor(array, needs) for",
        "leaves = [Tensor(array.astype(np.float32), needs) for",
        kind="dtype",
    ),
    Mutant(
        "8.7",
        "all checkpoints share the latest function",
        "ctx.run, ctx.others = function, others",
        "ctx.others = others; type(ctx).run = staticmethod(function)",
        kind="second call",
    ),
    Mutant(
        "8.7",
        "all checkpoints share the latest other arguments",
        "ctx.run, ctx.others = function, others",
        "ctx.run = function; type(ctx).others = others",
        kind="second call",
    ),
    Mutant(
        "8.7",
        "keeps the other arguments in one list",
        """
        others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
        """,
        """
        others = globals().setdefault("_others", [])
        others[:] = [Tensor if isinstance(value, Tensor) else value for value in inputs]
        """,
        kind="second call",
    ),
    Mutant(
        "8.7",
        "takes other arguments that are equal to None for tensors",
        "others = [Tensor if isinstance(value, Tensor) else value for value in inputs]",
        "others = [Tensor if isinstance(value, Tensor) or value is None else value for value in inputs]",
        kind="edge",
    ),
    Mutant(
        "8.7",
        "fails if the function returns its input",
        """
        return function(*join([Tensor(array) for array in arrays], others)).data
        """,
        """
        tensors = [Tensor(array) for array in arrays]
        output = function(*join(tensors, others))
        return tensors.index(output) if output in tensors else output.data
        """,
        kind="edge",
    ),
    Mutant(
        "8.7",
        "inputs without a gradient get one too",
        "leaves = [Tensor(array, needs) for",
        "leaves = [Tensor(array, needs or array.dtype.kind == 'f') for",
        kind="edge",
    ),
    Mutant(
        "8.7",
        "every input requires a gradient, whole numbers too",
        "leaves = [Tensor(array, needs) for",
        "leaves = [Tensor(array, needs or array.dtype.kind != 'f') for",
        kind="dtype",
    ),
    Mutant(
        "8.7",
        "recomputes in the precision of the first checkpoint",
        "with recomputing(), autocast(ctx.policy):",
        "with recomputing(), autocast(globals().setdefault('_policy', ctx.policy)):",
        kind="second call",
    ),
    # 8.8 worksheet
    Mutant("8.8", "masks take two bytes", "squared = 5 * heads", "squared = 6 * heads"),
    Mutant("8.8", "the scores are not split", "* samples / ranks  # with s s", "* samples  # with s s"),
    Mutant("8.8", "everything is split", "kept = 10 * rest + 24 * each / ranks", "kept = 34 * each / ranks"),
    Mutant(
        "8.8", "sequence parallelism splits nothing else", "rest = each / ranks if sequence else each", "rest = each"
    ),
    Mutant("8.8", "full splits the input without sequence parallelism", "return 2 * rest", "return 2 * each / ranks"),
    Mutant("8.8", "selective keeps the scores", 'kept + squared if mode == "none" else kept', "kept + squared"),
    Mutant(
        "8.8",
        "full holds nothing while it recomputes",
        '(layers - 1) * kept + layer_bytes(*sizes, "none", ranks, sequence)',
        "layers * kept",
    ),
    Mutant("8.8", "counts the last layer's saved arrays twice", "(layers - 1) * kept +", "layers * kept +"),
    Mutant("8.8", "selective is free", '"selective": attention', '"selective": 0'),
    Mutant(
        "8.8", "divides by forward's FLOPs alone", "again / (3 * (linear + attention))", "again / (linear + attention)"
    ),
    Mutant(
        "8.8",
        "backward takes as many as forward",
        "again / (3 * (linear + attention))",
        "again / (2 * (linear + attention))",
    ),
    Mutant(
        "8.8",
        "always a third",
        "return again / (3 * (linear + attention))",
        "return 1 / 3 if again else 0",
    ),
    Mutant("8.8", "rounds down what is split", "24 * each / ranks", "24 * each // ranks", kind="edge"),
    Mutant("8.8", "rounds down the rest", "each / ranks if sequence", "each // ranks if sequence", kind="edge"),
    Mutant(
        "8.8", "rounds down the scores", "* samples / ranks  # with s s", "* samples // ranks  # with s s", kind="edge"
    ),
    Mutant(
        "8.8",
        "remembers a layer by its sizes alone",
        """
        kept = layer_bytes(*sizes, mode, ranks, sequence)
        """,
        """
        layers_known = globals().setdefault("_known", {})
        kept = layers_known.setdefault((sizes, mode, ranks), layer_bytes(*sizes, mode, ranks, sequence))
        """,
        kind="second call",
    ),
    Mutant(
        "8.8",
        "one layer keeps nothing",
        "return (layers - 1) * kept + layer",
        "return max(layers - 1, 1) * kept + layer",
        kind="edge",
    ),
    Mutant(
        "8.8",
        "overflows 32 bits",
        "each = tokens * samples * width",
        "each = int(np.array(tokens * samples * width).astype(np.int32))",
        kind="dtype",
    ),
    Mutant(
        "8.8",
        "a share in float32",
        "return again / (3 * (linear + attention))",
        "return float(np.float32(again / (3 * (linear + attention))))",
        kind="dtype",
    ),
]
