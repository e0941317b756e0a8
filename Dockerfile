# looktwice as a service or a worker, with the library versions on record.
#   docker build -t looktwice .
#   docker build -t looktwice-ray --build-arg EXTRAS=onnx,postgres,ray .
FROM python:3.13-slim AS build
ARG EXTRAS=onnx,postgres,serve,fast
WORKDIR /source
COPY pyproject.toml README.md LICENSE requirements-dev.lock ./
COPY src src
RUN python -m pip install --no-cache-dir --prefix /install --constraint requirements-dev.lock ".[$EXTRAS]"

FROM python:3.13-slim
COPY --from=build /install /usr/local
RUN useradd --uid 10001 --user-group --home-dir /data --create-home looktwice
ENV PYTHONDONTWRITEBYTECODE=1 XDG_DATA_HOME=/data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["looktwice"]
CMD ["serve", "--host", "0.0.0.0", "--profile", "/data/profile.json"]
