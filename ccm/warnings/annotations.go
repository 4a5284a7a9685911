package warnings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Reasons why an annotation of a Service has no effect.
const (
	legacyAnnotation  = "LegacyAnnotation"
	unknownAnnotation = "UnknownAnnotation"
)

const (
	ourGroup       = "ironlb.io"
	metallbLegacy  = "metallb.universe.tf"
	metallbRecords = "ip-allocated-from-pool" // MetalLB's own record, in both of its groups
)

// ofLegacy maps MetalLB's annotations of its first group to their replacements.
var ofLegacy = map[string]string{
	"address-pool":    v1alpha1.AnnotationPool,
	"loadBalancerIPs": v1alpha1.AnnotationAddresses,
	"allow-shared-ip": servicerecord.AnnotationSharingKey,
}

// annotationWarnings warns about annotations that are ignored although they resemble supported ones.
func annotationWarnings(svc *v1.Service) (out []warning) {
	for _, key := range slices.Sorted(maps.Keys(svc.Annotations)) {
		group, name, _ := strings.Cut(key, "/")
		switch instead := ofLegacy[name]; {
		case !slices.Contains(watch.Groups, group) || name == metallbRecords && group != ourGroup || slices.Contains(watch.Annotations, key):
		case group == metallbLegacy && instead != "":
			out = append(out, warning{legacyAnnotation,
				fmt.Sprintf("Annotation %s is not read: write %s instead", key, instead)})
		default:
			out = append(out, warning{unknownAnnotation,
				fmt.Sprintf("Annotation %s is not read: no annotation of a Service has this name", key)})
		}
	}
	return out
}
