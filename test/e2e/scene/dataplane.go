package scene

import (
	"os"

	"github.com/ironlb/ironlb/test/lab"
)

// The data planes, as in the speaker's configuration.
const (
	IPVS     = "ipvs"
	NFTables = "nftables"
)

// DataPlane returns the data plane of the entire run: IRONLB_DATAPLANE, or else preset.
func DataPlane(preset string) string {
	if d := os.Getenv("IRONLB_DATAPLANE"); d != "" {
		return d
	}
	return preset
}

// Kernel returns the nodes' kernel for a data plane: nftables needs none but this machine's own.
func Kernel(dataplane string) lab.Kernel {
	if dataplane == NFTables {
		return lab.Native
	}
	return lab.Auto
}
