"""Packaging: the package lives in ``src/``, the twistd plugin in ``twisted/plugins/``."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

# For the schemas of topics (--schemas).
SCHEMAS = ["jsonschema-rs >= 0.60, < 1"]

TEST = [
    *SCHEMAS,
    # The official SDK of CloudEvents: events as its users send and read them.
    "cloudevents >= 2.2",
    # librdkafka's mock cluster, and a consumer that is not ours to read back what was published.
    "confluent-kafka >= 2.6",
    "h11 >= 0.14",
    "hypothesis >= 6.100",
    # Pages show programs with these two.
    "httpx >= 0.27",
    "requests >= 2.31",
    # Classes generated from Kafka's own schemas: an oracle for the wire format.
    "kio >= 0.6",
    # Kubernetes' own schemas, for the manifests.
    "kubernetes-validate >= 1.31",
    # The description of the interface, held against its own specification and against the service.
    "jsonschema >= 4.23",
    "openapi-spec-validator >= 0.7.2",
    "pytest >= 8.0",
    "pytest-timeout >= 2.3",
    "pytest-twisted >= 1.14.2",
    "schemathesis >= 4.32, < 5",
    # A test builds a wheel, with what is installed already.
    "setuptools >= 77",
    "wheel",
]

DOCS = [
    "furo >= 2024.8.6",
    # A program of the pages uses it.
    "httpx-sse >= 0.4",
    # CHANGELOG.md is a page of the documentation.
    "myst-parser >= 4.0",
    "sphinx >= 8.1",
    "sphinx-copybutton >= 0.5.2",
    # Tabs and cards.
    "sphinx-design >= 0.6.1",
]

# Where the project lives, once it has an address: whoever publishes it sets these, such as to
# https://host/owner/sampleapp and https://host/owner/sampleapp/blob/v1.0.0rc1. None is made up here.
HOME = os.environ.get("SAMPLEAPP_PROJECT_URL", "").rstrip("/")
FILES = os.environ.get("SAMPLEAPP_FILES_URL", "").rstrip("/")
# Where its manual can be read, for a link on the page /docs.
MANUAL = os.environ.get("SAMPLEAPP_MANUAL_URL", "")


def long_description() -> str:
    """
    Return README.md for a package index, which has none of the files that it links to.

    A link to a file becomes one to ``FILES``. As long as there is none, it becomes its text and the path.
    """
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    relative_link = r"\[([^]]+)\]\((?!https?:)([^)]+)\)"
    return re.sub(relative_link, rf"[\1]({FILES}/\2)" if FILES else r"\1 (`\2`)", text)


setup(
    # On PyPI, "sampleapp" is another project. What is imported, and the command, have that name all the same.
    name="sampleapp-http-gateway",
    version="1.0.0rc1",
    description=(
        "An HTTP gateway to Apache Kafka: publish messages with POST, get the response once they are stored, "
        "and read topics as pages or event streams."
    ),
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="the sampleapp developers",
    # The last two are those of Swagger UI and of what is bundled with it; their texts are in its folder.
    license_expression="MIT AND Apache-2.0 AND BSD-3-Clause",
    license_files=["LICENSE"],
    keywords=["apache-kafka", "gateway", "http", "kafka", "publish", "rest-proxy", "sqlite", "twisted"],
    project_urls={
        **({"Source": HOME, "Changes": f"{FILES}/CHANGELOG.md"} if HOME and FILES else {}),
        **({"Documentation": MANUAL} if MANUAL else {}),
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Framework :: Twisted",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Internet :: WWW/HTTP :: HTTP Servers",
        "Topic :: System :: Networking",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    install_requires=[
        # Four of these are capped, since names of theirs are used that are not public; which ones they are,
        # tests/test_private_names.py says. Raise a cap when that test passes with the next version.
        "afkak == 21.5.0.post0",
        "aiokafka >= 0.12, < 0.15",
        # In the standard library since Python 3.14. Unlike others it can be told where to stop.
        "backports.zstd >= 1.0; python_version < '3.14'",
        "click >= 8.1",
        # Client certificates, and the names in them. Twisted and pyOpenSSL take it for TLS as well.
        "cryptography >= 42",
        # For snappy.
        "cramjam >= 2.8",
        # llhttp, the parser of Node, for header fields.
        "httptools >= 0.8",
        # URLs in the form that treq takes them in.
        "hyperlink >= 21.0",
        "klein >= 24.8, < 25",
        "lz4 >= 4.4.3",
        "msgspec >= 0.19",
        # Only its formats; what is counted is counted in plain numbers.
        "prometheus-client >= 0.21",
        # JSON Web Tokens. Older ones take several texts for the same signature, or did not look at all that
        # a header says.
        "pyjwt >= 2.15",
        # Compares the names in a server's certificate with the one that was asked for.
        "service-identity >= 23.1",
        "treq >= 24.9",
        # Older ones cannot serve TLS with a pyOpenSSL of today.
        "twisted[tls] >= 26.4, < 27",
        # The rules of Klein's routes.
        "werkzeug >= 3.0",
        "zope.interface >= 6.0",
    ],
    extras_require={
        "schemas": SCHEMAS,
        "test": TEST,
        "docs": DOCS,
        "dev": [*TEST, "psutil >= 5.9", "pytest-xdist >= 3.5", "tox >= 4.11"],
        # What the benchmarks compare with.
        "bench": ["aiohttp >= 3.9", "uvloop >= 0.19; sys_platform != 'win32'"],
    },
    # "twisted.plugins" has no __init__.py, here as in Twisted itself: it is a directory that several
    # distributions put files into, and find_packages() does not see it.
    packages=[*find_packages("src", include=["sampleapp", "sampleapp.*"]), "twisted.plugins"],
    # src/twisted is a symbolic link to twisted/, so that an editable install finds the plugin as well.
    package_dir={"": "src"},
    package_data={
        "sampleapp": ["py.typed"],
        "sampleapp.brokers.sqlite": ["schema.sql", "work.sql"],
        "sampleapp.web.openapi": ["page/*", "swagger_ui/*"],
    },
    entry_points={"console_scripts": ["sampleapp = sampleapp.cli:main"]},
    zip_safe=False,
)
