"""What tests share: golden stores, simulated disks, real nodes on free ports."""
