"""The README's pictures, made again: `make pictures`.

They come from the running app in a headless Chromium.
"""

from tests.browser.harness import ROOT, app_server, chromium

PICTURES = ROOT / ".github" / "pictures"
SHOWN = "() => [...document.querySelectorAll('*')].some((host) => host.shadowRoot?.querySelector('.player')?.dataset.v)"


def main() -> None:
    """Write every picture."""
    PICTURES.mkdir(exist_ok=True)
    with app_server() as address, chromium() as browser:
        for name, path, width, height, scheme in (
            ("bench", "/bench?model=vgg16&cluster=8xV100-pcie", 1280, 1000, "light"),
            ("bench-dark-zh", "/bench?model=resnet50&cluster=4xA100&batch=12&lang=zh", 1280, 1000, "dark"),
        ):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(address + path)
            page.wait_for_function(SHOWN, timeout=30_000)
            page.wait_for_timeout(1000)
            page.screenshot(path=PICTURES / f"{name}.png")
            context.close()


if __name__ == "__main__":
    main()
