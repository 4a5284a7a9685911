package allocation

import (
	"context"
	"fmt"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/service"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
)

// serviceController is cloud-provider's service controller with the requeuer as its Service informer and the filtered
// client.
type serviceController struct{ *service.Controller }

// newServiceController creates the controller as its own constructor would, and starts nothing. cloud supports load
// balancers.
func newServiceController(
	cloud cloudprovider.Interface, api kubernetes.Interface, services *requeuer, nodes coreinformers.NodeInformer, cluster string,
) (serviceController, error) {
	c, err := service.New(cloud, filteredClient{api}, services, nodes, cluster, utilfeature.DefaultFeatureGate)
	if err != nil {
		return serviceController{}, fmt.Errorf("starting the service controller: %w", err)
	}
	return serviceController{c}, nil
}

// Run returns when ctx ends.
func (s serviceController) Run(ctx context.Context, workers int, metrics *controllersmetrics.ControllerManagerMetrics) {
	s.Controller.Run(filteredLog(ctx), workers, metrics)
}
