package bgpstatus

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// bgpObjects are all objects that the status of BGP depends on.
type bgpObjects struct {
	peers       v1alpha1.BGPPeerList
	ads         v1alpha1.BGPAdvertisementList
	profiles    v1alpha1.BFDProfileList
	communities v1alpha1.CommunityList
	speakers    v1alpha1.SpeakerStatusList
	absent      map[string]v1alpha1.Absence // of the speakers, by node
	pools       v1alpha1.IPAddressPoolList
	nodes       []*v1.Node
	services    []*v1.Service
}
