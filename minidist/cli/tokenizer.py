"""``minidist tokenizer``: trains a tokenizer on a text, for ``minidist train --tokenizer``."""

from minidist.cli.flags import integer
from minidist.cli.output import Output, check_outputs, terminal_console, write_outputs
from minidist.nn.tokenizer import TOKENIZER, FileTokenizer, read_file, train_tokenizer


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "tokenizer",
        help="train a tokenizer on a text",
        description="Train a byte-level BPE, as GPT-2's, on a text, and write it as Hugging Face's tokenizer.json. It "
        "takes their package tokenizers: pip install 'minidist[tokenizers]'.",
    )
    command.set_defaults(command=_tokenizer)
    command.add_argument("action", choices=("train",), help="what to do")
    command.add_argument("text", metavar="TEXT", help="text to train on, in UTF-8")
    command.add_argument("--vocab", type=integer, required=True, metavar="N", help="number of tokens, from 256 on")
    command.add_argument(
        "--out", metavar="FILE", default=TOKENIZER, help=f"write it to this file (default: {TOKENIZER})"
    )


def _tokenizer(options) -> int:
    text = read_file(options.text, "text")
    check_outputs({"out": options.out}, options.text)
    try:
        content = train_tokenizer(text, options.vocab)
    except ValueError as error:
        raise ValueError(f"tokenizer train: {error}") from None
    count = len(FileTokenizer(options.out, content).encode(text))
    told = f"{options.out}: {options.vocab:,} tokens. The text's {len(text):,} bytes are {count:,} of them, "
    told += f"{len(text) / count:.2f} bytes each"
    write_outputs(terminal_console(), Output("out", options.out, lambda path: path.write_bytes(content), told))
    return 0
