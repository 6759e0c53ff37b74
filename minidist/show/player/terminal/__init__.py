"""An animation in a terminal: a player with keys, or the frames one below the other where output is not a terminal.

lecture.py   what is shown: which scene at which step, which question is open, how the dials are set
texts.py     every part of the screen as text
app.py       the player: windows, keys and the timer
printed.py   the frames, printed
"""

from minidist.show.player.terminal.app import Player, play
from minidist.show.player.terminal.printed import print_animation

__all__ = ["Player", "play", "print_animation"]
