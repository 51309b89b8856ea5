// The report's page in a frame of a notebook, and the messages between the page and Python.
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "headroles";
  frame.setAttribute("sandbox", "allow-scripts allow-forms");
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 1px solid #8888; box-sizing: border-box`;
  frame.srcdoc = model.get("page");
  const receive = (event) => {
    const message = event.source === frame.contentWindow ? event.data?.headroles : null;
    if (message?.name === "sentence") model.send({ sentence: message.value });
    if (message?.name === "selected" || message?.name === "opened") {
      model.set(message.name, message.value);
      model.save_changes();
    }
  };
  const send = (message) => frame.contentWindow?.postMessage({ headroles: message }, "*");
  addEventListener("message", receive);
  model.on("msg:custom", send);
  el.append(frame);
  return () => {
    removeEventListener("message", receive);
    model.off("msg:custom", send);
  };
}

export default { render };
