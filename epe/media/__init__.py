"""Arrays to files: PNG, JPEG and WebP. The only room that knows picture formats."""

from epe.media.picture import encode_image, media_type

__all__ = ["encode_image", "media_type"]
