package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Community gives BGP communities names for use in BGPAdvertisements. The object's own name does not matter; one name
// for two values is none.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=communities,shortName=bgpcomm
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Communities",type=string,JSONPath=`.spec.communities`
type Community struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec CommunitySpec `json:"spec,omitempty"`
}

// CommunitySpec is what the operator wants.
type CommunitySpec struct {
	// communities by name.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=name
	// +optional
	Communities []NamedCommunity `json:"communities,omitempty"`
}

// NamedCommunity is a community with a name.
type NamedCommunity struct {
	// name of the community.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z_]([-_.a-zA-Z0-9]*[a-zA-Z0-9_])?$')",message="is no name: begin it with a letter, and use only letters, digits, '-', '_' and '.'"
	Name string `json:"name"`

	// value: 65000:1, or large:65000:1:2 for a large community (RFC 8092).
	//
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=38
	// +kubebuilder:validation:XValidation:rule="self.matches('^((0|[1-9][0-9]{0,4}):(0|[1-9][0-9]{0,4})|large(:(0|[1-9][0-9]{0,9})){3})$')",message="is not a community: write it like 65000:1 or large:65000:1:2"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(large(:[0-9]{1,10}){3}|[0-9]{1,5}:[0-9]{1,5})$') || self.split(':').all(n, n == 'large' || int(n) <= (self.startsWith('large:') ? 4294967295 : 65535))",message="has a number that is too large: the two of a community go up to 65535, the three of a large one to 4294967295"
	Value string `json:"value"`
}

// CommunityList is a list of communities.
//
// +kubebuilder:object:root=true
type CommunityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Community `json:"items"`
}

// CommunityValue is a community, or a large one (RFC 8092), as it is written in an object.
//
// +kubebuilder:object:generate=false
type CommunityValue struct {
	// Large has three parts, and else there are the first two, of 16 bits each.
	Large bool
	Parts [3]uint32
}

// ParseCommunity reads 65000:1 or large:65000:1:2. It takes what the rules of the kinds take.
func ParseCommunity(text string) (CommunityValue, error) {
	rest, large := strings.CutPrefix(text, "large:")
	parts, bits := 2, 16
	if large {
		parts, bits = 3, 32
	}
	out := CommunityValue{Large: large}
	fields := strings.Split(rest, ":")
	if len(fields) != parts {
		return CommunityValue{}, fmt.Errorf("%q is not a community: write it like 65000:1 or large:65000:1:2", text)
	}
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, bits)
		if err != nil || field != strconv.FormatUint(n, 10) {
			return CommunityValue{}, fmt.Errorf("%q is not a community: %q is no number of %d bits", text, field, bits)
		}
		out.Parts[i] = uint32(n)
	}
	return out, nil
}

// CommunityName reports whether an entry of spec.communities of a BGPAdvertisement is the name of a community.
func CommunityName(entry string) bool { return !strings.Contains(entry, ":") }
