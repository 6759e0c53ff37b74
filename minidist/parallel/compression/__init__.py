"""Compressed messages in place of gradients: fewer bits, fewer elements, lower rank.

A *method* turns each gradient of a bucket into a smaller message, and messages into an approximation of the sum over
the ranks. hook.py reads its name, and replaces a bucket's all-reduce by it.

    method        sends, of n elements          what it leaves out
    bf16          2 n bytes                     nothing on average: stochastic rounding
    int8          n bytes, one scale            nothing on average
    onebit        n / 8 bytes, one scale        all but signs      error feedback sends it later
    topk:SHARE    12 or 8 bytes an element      the small ones     error feedback
    powersgd:R    R (rows + columns) numbers    other directions   error feedback

Each parameter is compressed by itself. So where several ranks hold one parameter and its gradient (a norm's gain on all
tensor-parallel ranks, the embedding in the first and the last pipeline stage), they send the same message for it and
stay replicas; a scale or a threshold shared with other parameters, which are shards, would differ from rank to rank.
"""
