"""``python -m sampleapp [options]`` starts the service, as ``sampleapp serve [options]`` does."""

import sys

from sampleapp.service.tap import serve

if __name__ == "__main__":
    serve(sys.argv[1:])
