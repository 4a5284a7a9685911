// Package v1beta1 replaces the package of that name of github.com/metallb/frr-k8s, which MetalLB's programs link for
// their FRR-K8s mode and which the module proxy does not serve. It defines the names used by MetalLB's sources, so that
// they compile. With METALLB_BGP_TYPE=native, as the bench runs them, only AddToScheme is called.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// FRRConfiguration is the object that the FRR-K8s mode writes.
type FRRConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FRRConfigurationSpec `json:"spec,omitempty"`
}

// FRRConfigurationSpec is its specification.
type FRRConfigurationSpec struct {
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
	BGP          BGPConfig            `json:"bgp,omitempty"`
}

// BGPConfig is the BGP configuration of a node.
type BGPConfig struct {
	Routers     []Router     `json:"routers,omitempty"`
	BFDProfiles []BFDProfile `json:"bfdProfiles,omitempty"`
}

// Router is the configuration of an AS.
type Router struct {
	ASN       uint32     `json:"asn"`
	ID        string     `json:"id,omitempty"`
	VRF       string     `json:"vrf,omitempty"`
	Neighbors []Neighbor `json:"neighbors,omitempty"`
	Prefixes  []string   `json:"prefixes,omitempty"`
}

// DynamicASNMode is internal or external.
type DynamicASNMode string

// Neighbor is a BGP peer.
type Neighbor struct {
	Address                string           `json:"address,omitempty"`
	Interface              string           `json:"interface,omitempty"`
	ASN                    uint32           `json:"asn,omitempty"`
	DynamicASN             DynamicASNMode   `json:"dynamicASN,omitempty"`
	Port                   *uint16          `json:"port,omitempty"`
	Password               string           `json:"password,omitempty"`
	PasswordSecret         SecretReference  `json:"passwordSecret,omitempty"`
	HoldTime               *metav1.Duration `json:"holdTime,omitempty"`
	KeepaliveTime          *metav1.Duration `json:"keepaliveTime,omitempty"`
	ConnectTime            *metav1.Duration `json:"connectTime,omitempty"`
	BFDProfile             string           `json:"bfdProfile,omitempty"`
	EnableGracefulRestart  bool             `json:"enableGracefulRestart,omitempty"`
	EBGPMultiHop           bool             `json:"ebgpMultiHop,omitempty"`
	DualStackAddressFamily bool             `json:"dualStackAddressFamily,omitempty"`
	DisableMP              bool             `json:"disableMP,omitempty"`
	ToAdvertise            Advertise        `json:"toAdvertise,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Advertise selects the prefixes for a neighbor.
type Advertise struct {
	Allowed                   AllowedOutPrefixes      `json:"allowed,omitempty"`
	PrefixesWithLocalPref     []LocalPrefPrefixes     `json:"withLocalPref,omitempty"`
	PrefixesWithCommunity     []CommunityPrefixes     `json:"withCommunity,omitempty"`
	PrefixesWithAsPathPrepend []AsPathPrependPrefixes `json:"withAsPathPrepend,omitempty"`
}

// AllowedOutPrefixes are the prefixes allowed to be advertised.
type AllowedOutPrefixes struct {
	Prefixes []string `json:"prefixes,omitempty"`
}

// LocalPrefPrefixes have a local preference.
type LocalPrefPrefixes struct {
	LocalPref uint32   `json:"localPref"`
	Prefixes  []string `json:"prefixes,omitempty"`
}

// CommunityPrefixes have a community.
type CommunityPrefixes struct {
	Community string   `json:"community"`
	Prefixes  []string `json:"prefixes,omitempty"`
}

// AsPathPrependPrefixes have a prepended AS path.
type AsPathPrependPrefixes struct {
	AsPathPrepend uint8    `json:"asPathPrepend"`
	Prefixes      []string `json:"prefixes,omitempty"`
}

// BFDProfile has the timers of a BFD session.
type BFDProfile struct {
	Name             string  `json:"name"`
	ReceiveInterval  *uint32 `json:"receiveInterval,omitempty"`
	TransmitInterval *uint32 `json:"transmitInterval,omitempty"`
	DetectMultiplier *uint32 `json:"detectMultiplier,omitempty"`
	EchoInterval     *uint32 `json:"echoInterval,omitempty"`
	EchoMode         *bool   `json:"echoMode,omitempty"`
	PassiveMode      *bool   `json:"passiveMode,omitempty"`
	MinimumTTL       *uint32 `json:"minimumTtl,omitempty"`
}

// errUsed is the error of modes that this replacement does not support.
const errUsed = "the FRR-K8s mode of MetalLB is not built here"

// DeepCopyInto is called by the FRR-K8s mode only.
func (*FRRConfigurationSpec) DeepCopyInto(*FRRConfigurationSpec) { panic(errUsed) }

// DeepCopy is called by the FRR-K8s mode only.
func (*FRRConfiguration) DeepCopy() *FRRConfiguration { panic(errUsed) }

// DeepCopyObject is called by the FRR-K8s mode only.
func (*FRRConfiguration) DeepCopyObject() runtime.Object { panic(errUsed) }

// AddToScheme adds nothing: the native mode has no object of this group.
func AddToScheme(*runtime.Scheme) error { return nil }
