# A saved folder behind HTTP: `docker build --build-arg MODEL=models/tatoeba-en-de --tag translator .`
# TORCH_INDEX may name PyTorch's index of builds for CPUs, which are some gigabytes smaller.
FROM python:3.11 AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.11-slim
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
