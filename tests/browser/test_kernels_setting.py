"""The setting that forces a backend of the kernels: it is there, and the server receives it."""

from canvas_page import EACH_RENDERER

_SETTING = "glassbox.kernels.backend"
pytestmark = EACH_RENDERER


def test_setting_reaches_the_server(canvas):
    answers = []
    for backend in ("eager", "environment"):
        with canvas.page.expect_response(
            lambda response: "/glassbox/kernels" in response.url
        ) as answer:
            canvas.page.evaluate(
                "([id, value]) => app.extensionManager.setting.set(id, value)", [_SETTING, backend]
            )
        answers.append((answer.value.status, answer.value.json()))
    assert answers == [(200, {"backend": backend}) for backend in ("eager", "environment")]
    assert (
        canvas.page.evaluate("id => app.extensionManager.setting.get(id)", _SETTING)
        == "environment"
    )
