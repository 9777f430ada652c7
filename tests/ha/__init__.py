"""High availability: Patroni and etcd, three nodes, and what a failover costs."""
