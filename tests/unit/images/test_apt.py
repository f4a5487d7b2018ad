"""The default image is built from the mirror that the machine itself uses."""

from __future__ import annotations

from dsec.images.apt import apt_options, select_sources

DEB822 = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

# another
Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main contrib

Types: deb
URIs: http://other.example/node
Suites: nodistro
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """# deb http://commented.example bookworm main
deb [arch=amd64] http://mirror.example/debian bookworm main
deb http://mirror.example/debian trixie main
deb-src http://mirror.example/debian bookworm main
deb http://third.example/apt bookworm stable
"""


def test_only_the_suite_is_taken() -> None:
    """Entries of other suites, other archives, sources and disabled ones are left out."""
    lines, stanzas = select_sources([DEB822, ONE_LINE], "bookworm")
    assert lines == "deb [arch=amd64] http://mirror.example/debian bookworm main\n"
    assert stanzas.count("URIs:") == 2
    assert "security" in stanzas
    assert "other.example" not in stanzas
    assert "off.example" not in stanzas


def test_stanzas_stay_apart() -> None:
    """deb822 stanzas are separated by an empty line."""
    assert "\n\n" in select_sources([DEB822], "bookworm")[1]


def test_another_distribution_gives_nothing() -> None:
    """On a machine with other suites, mmdebstrap's own default is left to work."""
    assert select_sources(["deb http://archive.example/ubuntu noble main\n"], "bookworm") == ("", "")


def test_options_that_reach_the_mirror() -> None:
    """Proxies and date checks are passed on, everything else is not."""
    dump = (
        'APT::Architecture "amd64";\nAcquire::http::Proxy "http://proxy.example:3128/";\n'
        'Acquire::Check-Valid-Until "false";\nAcquire::IndexTargets::deb::x "y";\nAcquire::https::Proxy "";\n'
    )
    assert apt_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example:3128/"',
        'Acquire::Check-Valid-Until "false"',
    ]
