"""Plans beyond equal replicas at one rate: other traffic, routers, pools, and a day."""
