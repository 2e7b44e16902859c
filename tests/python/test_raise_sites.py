"""Every place in the package that makes an error made it in some test; runs last, with --raise-sites (nightly)."""


def test_every_raise_site_was_reached(unreached_sites: list[str]) -> None:
    assert not unreached_sites, "\n".join(unreached_sites)
