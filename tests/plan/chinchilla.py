"""Published runs and tables that a law can be held against.

Hoffmann et al. (2022, arXiv 2203.15556) print the best training of nine sizes three times: by the envelope of training
curves (approach 1, table 3), by isoFLOP curves (approach 2) and by the parametric fit (approach 3, both table A3). The
first two agree: 19 to 29 tokens per parameter. The third asks for 23 to 143; Besiroglu et al. (2024, arXiv 2404.10102)
fit the runs again, and agree with the first two. The third's exponents are rounded in the text: at 5.76e23 FLOPs they
give 93 tokens per parameter, the four digits of the source 59. And it prints 1.26e24 FLOPs for 175 billion parameters,
a slip for 1.26e25.
"""

CHINCHILLA = (70e9, 1.4e12)  # parameters, tokens; Hoffmann et al., table 1
GOPHER = (280e9, 300e9)  # the same budget, by the rules of 2020
GOPHER_FLOPS = 5.76e23  # Hoffmann et al., table 3: "for reference" of the budget of both

SIZES = (400e6, 1e9, 10e9, 67e9, 175e9, 280e9, 520e9, 1e12, 10e12)  # parameters: the rows of the tables below
APPROACH_1 = (  # table 3: training FLOPs, tokens
    (1.92e19, 8.0e9), (1.21e20, 20.2e9), (1.23e22, 205.1e9), (5.76e23, 1.5e12), (3.85e24, 3.7e12), (9.90e24, 5.9e12),
    (3.43e25, 11.0e12), (1.27e26, 21.2e12), (1.30e28, 216.2e12),
)  # fmt: skip
APPROACH_2 = (  # table A3
    (1.84e19, 7.7e9), (1.20e20, 20.0e9), (1.32e22, 219.5e9), (6.88e23, 1.7e12), (4.54e24, 4.3e12), (1.18e25, 7.1e12),
    (4.19e25, 13.4e12), (1.59e26, 26.5e12), (1.75e28, 292.0e12),
)  # fmt: skip
APPROACH_3 = (  # table A3, as printed
    (2.21e19, 9.2e9), (1.62e20, 27.1e9), (2.46e22, 410.1e9), (1.71e24, 4.1e12), (1.26e24, 12.0e12), (3.52e25, 20.1e12),
    (1.36e26, 43.5e12), (5.65e26, 94.1e12), (8.55e28, 1425.5e12),
)  # fmt: skip
