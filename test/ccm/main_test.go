// Package ccm tests ironlb-ccm on a real etcd and kube-apiserver: killed at random times, and restarted with thousands
// of Services.
//
// IRONLB_LAB_LOGS names a folder for the logs of a failed test.
package ccm

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) { rig.Main(m) }
