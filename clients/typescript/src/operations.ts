// Made by scripts/make_typescript.py; do not change it.
import type { components } from "./schemas.js";

type Schemas = components["schemas"];
export const OPERATIONS = {
  estimateJob: ["POST", "/v1/jobs/estimate"],
  submitJob: ["POST", "/v1/jobs"],
  listJobs: ["GET", "/v1/jobs"],
  getJob: ["GET", "/v1/jobs/{job_id}"],
  deleteJob: ["DELETE", "/v1/jobs/{job_id}"],
  cancelJob: ["POST", "/v1/jobs/{job_id}/cancel"],
  requeueJob: ["POST", "/v1/jobs/{job_id}/requeue"],
  streamJobEvents: ["GET", "/v1/jobs/{job_id}/events"],
  getJobArchive: ["GET", "/v1/jobs/archive"],
  getJobResult: ["GET", "/v1/jobs/{job_id}/result"],
  getSignedFile: ["GET", "/files/{job_id}/{lease_token}/{name}"],
  watchClip: ["GET", "/v1/jobs/{job_id}/live"],
  uploadFile: ["POST", "/v1/files"],
  listFiles: ["GET", "/v1/files"],
  getFile: ["GET", "/v1/files/{file_id}"],
  deleteFile: ["DELETE", "/v1/files/{file_id}"],
  getFileContent: ["GET", "/v1/files/{file_id}/content"],
  submitBatch: ["POST", "/v1/batches"],
  listBatches: ["GET", "/v1/batches"],
  getBatch: ["GET", "/v1/batches/{batch_id}"],
  cancelBatch: ["POST", "/v1/batches/{batch_id}/cancel"],
  getBatchResults: ["GET", "/v1/batches/{batch_id}/results"],
  listModels: ["GET", "/v1/models"],
  getModel: ["GET", "/v1/models/{model}"],
} as const;

/** What operations respond with as JSON, but for those of files and streams. */
export interface Responses {
  estimateJob: Schemas["EstimateResource"];
  submitJob: Schemas["JobResource"];
  listJobs: Schemas["JobPage"];
  getJob: Schemas["JobResource"];
  deleteJob: undefined;
  cancelJob: Schemas["JobResource"];
  requeueJob: Schemas["JobResource"];
  uploadFile: Schemas["FileResource"];
  listFiles: Schemas["FilePage"];
  getFile: Schemas["FileResource"];
  deleteFile: Schemas["DeletedFile"];
  submitBatch: Schemas["BatchResource"] | Schemas["FileBatchResource"];
  listBatches: Schemas["BatchPage"] | Schemas["FileBatchPage"];
  getBatch: Schemas["BatchResource"];
  cancelBatch: Schemas["BatchResource"];
  listModels: Schemas["ModelList"];
  getModel: Schemas["ModelResource"];
}
