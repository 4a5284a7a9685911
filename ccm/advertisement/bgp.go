package advertisement

import (
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// OfBGP parses the selectors of an object, as advertisementOf does.
func OfBGP(obj *v1alpha1.BGPAdvertisement) (Selection, error) {
	var read Reader
	a := Selection{
		pools:         obj.Spec.IPAddressPools,
		poolSelectors: read.All("ipAddressPoolSelectors", obj.Spec.IPAddressPoolSelectors),
		Services:      read.All("serviceSelectors", obj.Spec.ServiceSelectors),
		Nodes:         read.All("nodeSelectors", obj.Spec.NodeSelectors),
	}
	a.Repeated = read.Repeated
	return a, read.Err()
}
