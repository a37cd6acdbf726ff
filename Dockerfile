# A saved folder behind HTTP: `docker build --build-arg MODEL=models/tatoeba-en-de --tag translator .`
# TORCH_INDEX may name PyTorch's index of builds for CPUs, which are some gigabytes smaller.
# The digests are those of docker-library/repo-info (July and August 2026, Python 3.11.15).
FROM python:3.11@sha256:c7220863385ee39fb6d822da81f4469d0cd33ff893d92ce94105e5c3f4b95fe2 AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.11-slim@sha256:90744cff8f32887f075c47d747a173ff333e9e98801667af93c357fa9f5e28ff
COPY --from=build /wheels /src/constraints.txt /wheels/
ARG TORCH_INDEX
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[serve]"
ARG MODEL=models/tatoeba-en-de
COPY ${MODEL} /model
USER 65534
ENV HF_HUB_OFFLINE=1 HF_HOME=/tmp OMP_WAIT_POLICY=PASSIVE
EXPOSE 8080
CMD ["reluformers", "serve", "/model", "--host", "0.0.0.0"]
