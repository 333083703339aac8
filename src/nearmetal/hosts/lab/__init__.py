"""The lab: an emulated SR-IOV cluster with real drivers and a real hypervisor, in virtual time."""
