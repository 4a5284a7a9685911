// Package advertisement parses what an L2Advertisement or a BGPAdvertisement selects: pools, Services and nodes.
//
// An empty list of selectors selects everything. An invalid selector selects nothing, and is an error that names its
// field. A Selection also reports what an operator probably did not mean: a selector that is in its list twice, and a
// pool that does not exist.
package advertisement
