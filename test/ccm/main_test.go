// Package ccm tests ironlb-ccm on a real etcd and kube-apiserver: killed at any moment, and restarted beside thousands of
// Services.
//
// IRONLB_LAB_LOGS names a folder to keep the logs of a failed test in.
package ccm

import (
	"testing"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
