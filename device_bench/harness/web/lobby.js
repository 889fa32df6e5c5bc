import { arrive } from './follow.js';
import { failed } from './view.js';

arrive().catch((error) => failed(String(error.message || error)));
