"""The gallery: one folder with a page of cards, and a page for each demonstration that leads to the next.

chapters.py    the key pictures of the chapters
folder.py      the cards, and all files of the folder
index.html     the template of the page of cards
"""

from minidist.show.gallery.chapters import key_pictures
from minidist.show.gallery.folder import files

__all__ = ["files", "key_pictures"]
