"""Pictures that only one chapter draws. What commands draw too is in minidist/show."""
