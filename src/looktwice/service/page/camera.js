// One picture from the camera, or a burst while the phone is turned a little.

const FRAMES = 8;
const PAUSE = 280; // milliseconds between the photos of a burst
const byId = (id) => document.getElementById(id);
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function photo(video, name) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((done) => canvas.toBlob((blob) => done(new File([blob], name, { type: "image/jpeg" })), "image/jpeg", 0.92));
}

export class Camera {
  #dialog = byId("camera-dialog");
  #video = byId("video");
  #stream = null;
  #taken;

  /** `taken` gets the photos: one, or those of a burst. */
  constructor(taken) {
    this.#taken = taken;
    byId("snapshot").addEventListener("change", ({ target }) => {
      if (target.files.length) taken([...target.files]);
      target.value = "";
    });
    byId("snap").addEventListener("click", () => this.#take(1));
    byId("burst").addEventListener("click", () => this.#take(FRAMES));
    byId("camera-close").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => this.#end());
  }

  async open() {
    if (!navigator.mediaDevices?.getUserMedia) return byId("snapshot").click(); // over plain HTTP: the phone's own camera
    try {
      const video = { facingMode: "environment", width: { ideal: 1280 }, height: { ideal: 960 } };
      this.#stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      const why = error.name === "NotAllowedError" ? "was not allowed" : "cannot be used";
      throw new Error(`The camera ${why}. Choose a photo instead.`);
    }
    this.#video.srcObject = this.#stream;
    this.#dialog.showModal();
  }

  async #take(count) {
    if (!this.#video.videoWidth) return;
    this.#busy(true, count);
    const photos = [];
    for (let index = 0; index < count && this.#stream; index++) {
      if (index) await wait(PAUSE);
      photos.push(await photo(this.#video, `photo ${index + 1}.jpg`));
      byId("frames").value = index + 1;
    }
    this.#busy(false, count);
    const complete = this.#stream !== null;
    this.#dialog.close();
    if (complete) this.#taken(photos);
  }

  #busy(busy, count) {
    for (const id of ["snap", "burst"]) byId(id).disabled = busy;
    for (const id of ["frames", "turning"]) byId(id).hidden = !(busy && count > 1);
    byId("frames").max = count;
    byId("frames").value = 0;
  }

  #end() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#stream = null;
    this.#video.srcObject = null;
  }
}
