// Package incremental has what the incremental plans keep their state in: an Index is a relation with a lookup by one
// side, Set changes one entry of a map, and Earlier combines two due times.
package incremental
