// Package gobgp speaks BGP by GoBGP v3, and is the only one that imports it. docs/design/bgp.md has the whole.
package gobgp

import (
	_ "github.com/osrg/gobgp/v3/api"
	_ "github.com/osrg/gobgp/v3/pkg/server"
)
