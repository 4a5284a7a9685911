package bgpstatus

// Reasons why no node serves an address that a BGPAdvertisement covers. A node without an endpoint announces nothing
// for policy Local while another one does, and one without a peer announces nothing at all: both are as expected, and
// only the state of all nodes shows whether an address is served.
const (
	reasonNoPeer          = "NoPeer"
	reasonNoSession       = "NoSession"
	reasonExcluded        = "Excluded"
	reasonNoLocalEndpoint = "NoLocalEndpoint"
	reasonNoEndpoint      = "NoEndpoint"
)

// unservedMessages explain each reason and its remediation.
var unservedMessages = map[string]string{
	reasonNoLocalEndpoint: "no node announces it: externalTrafficPolicy is Local, and no node that may announce it " +
		"has an endpoint of the Service (of each Service, if several share the address); start a Pod there, or use Cluster",
	reasonNoEndpoint: "it is announced, and connections are refused: the Service has no endpoint that is ready",
	reasonNoPeer: "no node announces it: no node that the BGPAdvertisement covers has a BGPPeer that it names and that takes addresses of the family; " +
		"check the condition Ready of both, and their nodeSelectors",
	reasonNoSession: "no node announces it: no node that may announce it has an established session with a BGPPeer that the BGPAdvertisement names " +
		"and that takes addresses of the family; see the condition Established of the BGPPeers",
	reasonExcluded: "no node announces it: every node that the BGPAdvertisement covers is excluded by label, being deleted or has no network",
}
