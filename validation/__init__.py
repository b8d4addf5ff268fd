"""The torch.distributed harness: replays a program on real devices and records when everything happened."""
