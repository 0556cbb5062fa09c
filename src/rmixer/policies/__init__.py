"""Policies: what starts where. Each is one class with one pure method, see `base.Policy`.

`baselines` holds what people do by hand, `complementary` the default. The policies of the
literature and of peers join here, one file each.
"""
