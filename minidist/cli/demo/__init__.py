"""``minidist demo``: demonstrations in a terminal, and as files.

command.py has its options and what they go together with, menu.py the menu, files.py the files of one demonstration,
and every.py what ``--all`` makes: the gallery, and the speaker's notes of all.
"""
