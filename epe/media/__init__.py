"""Arrays to files: PNG, JPEG, WebP, MP4 and WebM. The only room that knows their formats."""

from epe.media.file import encode_file, media_type
from epe.media.picture import encode_image
from epe.media.video import encode_video

__all__ = ["encode_file", "encode_image", "encode_video", "media_type"]
